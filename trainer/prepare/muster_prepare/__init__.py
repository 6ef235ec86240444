"""Text files and JSON lines to the token shards that muster-trainer reads.

inputs.py     finds the files, cuts them into shards (a function of the files alone), reads documents
vocabulary.py the tokenizer: bytes, or a Hugging Face one
shards.py     one shard on disk; the index, published last
workers.py    worker processes that may die, be stopped, and come in any number
progress.py   the line for people, the datagrams for Muster
cli.py        arguments, exit codes, the order of it all
"""
