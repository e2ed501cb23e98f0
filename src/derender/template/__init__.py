"""Messages → prompt text: Jinja chat templates as transformers renders them."""
