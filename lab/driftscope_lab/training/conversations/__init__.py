"""Conversations that a target is trained on: exchanges of many kinds, made from the corpus."""
