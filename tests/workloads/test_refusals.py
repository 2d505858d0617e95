"""What a workload is told and cannot be, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.core.errors import ConfigError
from headgate.workloads import traces
from headgate.workloads.nexmark import DELAY_MS_MAX, NexmarkConfig, chosen_columns
from headgate.workloads.rates import parse_rate
from headgate.workloads.replay import ReplayConfig, load
from headgate.workloads.sentences import SentencesConfig
from headgate.workloads.stock_exchange import StockExchangeConfig
