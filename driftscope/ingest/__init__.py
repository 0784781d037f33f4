"""Figures of speculative decoding in other engines' and tools' files, in one convention."""
