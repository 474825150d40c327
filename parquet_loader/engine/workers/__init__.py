"""The threads of an epoch: jobs, their order, and the record of them."""
