"""Freezes the fork server's loaded objects for the collector, so that no rank pays for them."""

import gc

import numpy.ma
import pytest  # the ranks import the caller's __main__, which is pytest
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import torch.profiler
import torch.utils.data

import tests.trainer.runs
import trainer.loop.train
from trainer.provenance import installed_packages
from trainyard.base.model_base import build_validators

LOADED = (numpy.ma, pytest, torch, tests.trainer.runs, trainer.loop.train)

installed_packages()
build_validators()

gc.collect()
gc.freeze()  # a collection in a rank would walk all of them, and copy their pages
