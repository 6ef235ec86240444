"""Text, JSON lines and Parquet to the token shards that muster-trainer reads.

storage.py    local files, HTTP, S3, GCS, HDFS and the hub as one: finding and reading
inputs.py     cuts the files into shards (a function of the files alone), reads records
examples.py   a record's text, and which of it counts in the loss; chat templates
vocabulary.py the tokenizer: bytes, or a Hugging Face one
shards.py     one shard on disk; the index, published last
workers.py    worker processes that may die, be stopped, and come in any number
progress.py   the line for people, the datagrams for Muster
cli.py        arguments, exit codes, the order of it all
"""
