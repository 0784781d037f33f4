"""The probe inside a serving engine: hooks on a drafter, and the reference that defines them.

Nothing here imports torch or vllm until the engine has loaded them.
"""
