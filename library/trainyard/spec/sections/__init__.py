"""Sections of the job spec; a module is named for the first of its sections.

| module | sections |
|---|---|
| model | model, data |
| training | training, optimizer, lr_schedule, validation |
| parallelism | parallelism, activation_checkpoint, compile, quantization |
| checkpoint | checkpoint |
| resources | resources, env |
| retry | retry, guard |
"""
