"""What is kept on disk, for later processes, and the digests that say what it was made from.

    disk_cache.py       machine code and other bytes by key, in a directory that processes share
    code_cache.py       kernels as text, by fusion and parameters
    tuning_store.py     parameters that were measured to be the best
    sources.py          the digest of pyfuser's own code

kernel_cache.py keeps what is made in this process.
"""
