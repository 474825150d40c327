"""An epoch as one HTML page, and as a trace.

timeline   the record of an epoch as intervals of time
charts     intervals as SVG
bars       bars with error bars, of `parquet-loader bench`
page       the page
trace      the record in the format of Chrome's and Perfetto's trace viewers
"""
