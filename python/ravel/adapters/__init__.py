"""Ravel behind the call shapes of today's frameworks, so that trying it is a one-line change.

    from ravel.adapters import verl, nemo_rl, megatron, trl, huggingface

Each module says where it differs from the original, and why: mostly that a token budget is a hard cap here.
"""
