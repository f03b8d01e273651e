"""The command line ``millstream <noun> <verb>``: one file per noun, over ``millstream.client``."""
