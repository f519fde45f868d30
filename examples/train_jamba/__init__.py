"""Trains a small Jamba-style hybrid on a text, on CPUs, in transformers' parameterisation.

It is plain torch and calls no kernel of Blockstride: what it trains is an independent witness of
what the product computes. It is run in the folder `examples`:

    python -m train_jamba --text book.txt --out my-hybrid
"""
