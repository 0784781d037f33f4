"""The first screen: what the runs show, in six short lines and a headline."""
