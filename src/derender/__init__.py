"""derender: the text side of disaggregated LLM serving."""
