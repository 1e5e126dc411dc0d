"""Tests on an emulated arm64 CPU (tools/arm64/run_tests.sh): the pytest plugin for it, and what x86-64 prepares for it."""
