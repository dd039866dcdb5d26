"""Imports `transformers` and its files of the architectures that ranks build."""

from importlib import import_module

from trainer.torch_versions import quiet_torchao

FILES = ("mistral", "gemma3", "qwen3", "phi", "gpt_oss", "olmo2", "mixtral", "deepseek_v3")

with quiet_torchao():
    for file in FILES:
        import_module(f"transformers.models.{file}.modeling_{file}")
