"""Predicts an epoch: its first batch, time, waits, memory, requests and cost.

model        calibration, plan and budget -> prediction; pure
network      requests that share a link, in simulated time; pure
calibration  reads the beginning of an epoch, and measures the rates that the model needs
comparison   loaders that differ in one argument, measured in turns
prices       prices of requests and transfers at object stores
"""
