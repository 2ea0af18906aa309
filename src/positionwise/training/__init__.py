"""Training on sentence pairs: data, tokenizer, batches, the trainer, runs, scores and the demonstration."""
