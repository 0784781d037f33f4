"""Regions of an answer: which kind of text each token belongs to, and where the kind changes.

==========================  ====================================================================
`text_regions`              regions of a text: fences, tool calls, thinking, tables, numbers
`copied_tokens`             tokens that repeat an earlier passage of prompt or answer
`answer_regions`            both, for the token ids of one request
==========================  ====================================================================

Only numbers leave this package: places of tokens, and codes of `driftscope.vocabulary.Region`.
"""
