"""driftscope: see why speculative decoding stops paying.

A probe inside the serving engine writes a trace; everything else reads traces.
"""

__version__ = "0.1.0"
