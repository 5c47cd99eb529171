"""Seconds of plans over more than 10,000 candidates, on one core.

    python benches/config_plan.py

Each plan runs three times; the fastest run counts. "modelled" are the candidates that no bound
dropped.
"""

from __future__ import annotations

import time

import hlofast

RUNS = {
    "llama3.1-8b": ("v5p-512", ["per_device_batch_size=4", "max_target_length=8192"]),
    "llama2-70b": ("v6e-256", ["per_device_batch_size=3", "max_target_length=4096"]),
    "llama3.1-405b": ("v5p-8192", ["per_device_batch_size=1", "max_target_length=8192"]),
    "gemma3-27b": ("v5e-256", ["per_device_batch_size=2", "max_target_length=4096"]),
    "mixtral-8x7b": ("v6e-256", ["per_device_batch_size=12", "max_target_length=4096"]),
    "qwen3-30b-a3b": ("v5p-256", ["per_device_batch_size=4", "max_target_length=4096"]),
}
"""Models of MaxText, each with an instance and arguments."""
REPEATS = 3


def main() -> None:
    """Measures and prints one line per plan."""
    print(f"{'model':16} {'instance':10} {'candidates':>10} {'modelled':>9} {'seconds':>8}")
    for model, (instance, arguments) in RUNS.items():
        overrides = [f"model_name={model}", *arguments]
        config = hlofast.config.loads("", path="run.yml", overrides=overrides)
        seconds = []
        for _ in range(REPEATS):
            began = time.process_time()
            plan = config.plan(instance)
            seconds.append(time.process_time() - began)
        known = {fact.name: fact.value for fact in plan.facts}
        counts = f"{known['candidates']:10,} {known['modelled']:9,}"
        print(f"{model:16} {instance:10} {counts} {min(seconds):8.2f}")


if __name__ == "__main__":
    main()
