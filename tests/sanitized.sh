# shellcheck shell=bash disable=SC2034
# Which unit tests are built again with sanitizers (sourced by tests/run.sh). Libraries without gRPC only, to keep builds short.
# asan: parsers, whatever reads bytes from outside, a short run of each fuzz target, Apply with random events, decisions, the store, and answers. tsan: what several threads share.
# Out: agent_shim_test under asan (LeakSanitizer can't work inside the PID namespaces that the shim makes); agent_reconcile_test
# under tsan (protobuf's Map is inlined into instrumented code and handed to Debian's uninstrumented library: it crashes there).
asan_tests=(base_test spec_job_test spec_config_test trace_test state_test transitions_test snapshot_test trust_test oidc_test identity_test
            decide_test place_test rounds_test fuzz_test pki_test store_test store_faults_test packs_test secrets_test agent_unpack_test agent_image_test ask_test narrate_test
            fuzz_agent_commands fuzz_agent_stream fuzz_certificates fuzz_checkpoint_index fuzz_config_files fuzz_id_token fuzz_job_file fuzz_job_proto fuzz_progress_line fuzz_safetensors fuzz_shim_files fuzz_trace)
tsan_tests=(base_test trust_test engine_test commands_test sessions_test snapshot_test access_test guard_test)
