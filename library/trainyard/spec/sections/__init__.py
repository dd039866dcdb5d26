"""Sections of the job spec; each module has the name of its first section.

| module | sections |
|---|---|
| model | model, data |
| training | training, optimizer, lr_schedule, validation |
| parallelism | parallelism, activation_checkpoint, compile, quantization |
| checkpoint | checkpoint |
| resources | resources, env |
| retry | retry, guard |
| program | program |
"""
