"""The Hugging Face Hub: addresses of repositories, its API, its tokens, and HTTP connections."""
