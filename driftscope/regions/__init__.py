"""Regions of an answer: which kind of text each token belongs to, and where the kind changes.

==========================  ====================================================================
`text_regions`              regions of a text: fences, tool calls, thinking, tables, numbers
`fence_languages`           classes of the languages that fences name
`copied_tokens`             tokens that repeat an earlier passage of prompt or answer
`answer_regions`            all of these, for the token ids of one request
`round_places`              places of a request's rounds among its regions
==========================  ====================================================================

Only numbers leave this package: places of tokens, and codes of `driftscope.vocabulary.Region` and
`Language`.
"""
