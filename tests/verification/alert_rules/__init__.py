"""Incidents of days, which promtool plays through the shipped rules."""
