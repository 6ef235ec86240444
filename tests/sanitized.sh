# Which unit tests are built again with sanitizers (sourced by tests/run.sh). Libraries without gRPC only, to keep builds short.
# asan: parsers, whatever reads bytes from outside, and Apply with random events. tsan: what several threads share.
asan_tests=(base_test spec_job_test spec_config_test agent_shim_test trace_test transitions_test snapshot_test)
tsan_tests=(base_test engine_test commands_test sessions_test snapshot_test agent_reconcile_test)
