"""Settings of every test."""

from hypothesis import settings

# A busy machine makes a single example slow now and then; that is no failure.
settings.register_profile("driftscope", deadline=None)
settings.load_profile("driftscope")
