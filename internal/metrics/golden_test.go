// SPDX-License-Identifier: Apache-2.0

package metrics

// freshMetrics is what an agent that has just started shows.
const freshMetrics = `
# HELP sockhealth_adoption_last_round_success 0 where older connections could not all be brought under the policy, or their state is not known.
# TYPE sockhealth_adoption_last_round_success gauge
sockhealth_adoption_last_round_success 1
# HELP sockhealth_api_reachable 1 where the name of the agent's Unix socket leads to this agent, 0 where nobody reaches it.
# TYPE sockhealth_api_reachable gauge
sockhealth_api_reachable{socket="admin.sock"} 0
sockhealth_api_reachable{socket="report.sock"} 0
# HELP sockhealth_api_sockets_remade_total How often a Unix socket of the agent was removed or replaced, and made again.
# TYPE sockhealth_api_sockets_remade_total counter
sockhealth_api_sockets_remade_total{socket="admin.sock"} 0
sockhealth_api_sockets_remade_total{socket="report.sock"} 0
# HELP sockhealth_app_overrides_total Socket options that applications set themselves on managed connections.
# TYPE sockhealth_app_overrides_total counter
sockhealth_app_overrides_total{outcome="allowed",policy="buffer"} 0
sockhealth_app_overrides_total{outcome="held",policy="buffer"} 0
sockhealth_app_overrides_total{outcome="kept",policy="buffer"} 0
sockhealth_app_overrides_total{outcome="raised",policy="buffer"} 0
# HELP sockhealth_bytes_acked_total Payload sent and acknowledged on managed connections, added when each ends.
# TYPE sockhealth_bytes_acked_total counter
sockhealth_bytes_acked_total{policy="buffer"} 0
# HELP sockhealth_bytes_received_total Payload received on managed connections, added when each ends.
# TYPE sockhealth_bytes_received_total counter
sockhealth_bytes_received_total{policy="buffer"} 0
# HELP sockhealth_canary_last_timestamp_seconds When the last canary connection was tried, 0 before the first.
# TYPE sockhealth_canary_last_timestamp_seconds gauge
sockhealth_canary_last_timestamp_seconds 0
# HELP sockhealth_canary_success 1 where the programs bounded the last canary connection, 0 where they did not or none could be made.
# TYPE sockhealth_canary_success gauge
sockhealth_canary_success 0
# HELP sockhealth_closes_deferred Condemned sockets that wait for the budget, or are judged again.
# TYPE sockhealth_closes_deferred gauge
sockhealth_closes_deferred 0
# HELP sockhealth_closes_total Condemned sockets, by what was done.
# TYPE sockhealth_closes_total counter
sockhealth_closes_total{action="closed",policy="buffer"} 0
sockhealth_closes_total{action="deferred",policy="buffer"} 0
sockhealth_closes_total{action="failed",policy="buffer"} 0
sockhealth_closes_total{action="frozen",policy="buffer"} 0
sockhealth_closes_total{action="observed",policy="buffer"} 0
# HELP sockhealth_closing_frozen 1 where nothing is closed by judgement, because this node itself seems to be cut off.
# TYPE sockhealth_closing_frozen gauge
sockhealth_closing_frozen 0
# HELP sockhealth_connections_adopted_total Connections that came under the policy while they were open.
# TYPE sockhealth_connections_adopted_total counter
sockhealth_connections_adopted_total{policy="buffer"} 0
# HELP sockhealth_connections_closed_total Managed connections ended, by cause as the kernel saw it.
# TYPE sockhealth_connections_closed_total counter
sockhealth_connections_closed_total{cause="destroyed",policy="buffer"} 0
sockhealth_connections_closed_total{cause="idle_bound",policy="buffer"} 0
sockhealth_connections_closed_total{cause="in_flight_bound",policy="buffer"} 0
sockhealth_connections_closed_total{cause="normal",policy="buffer"} 0
sockhealth_connections_closed_total{cause="other",policy="buffer"} 0
sockhealth_connections_closed_total{cause="reset",policy="buffer"} 0
# HELP sockhealth_connections_opened_total Managed connections opened.
# TYPE sockhealth_connections_opened_total counter
sockhealth_connections_opened_total{direction="inbound",policy="buffer"} 0
sockhealth_connections_opened_total{direction="outbound",policy="buffer"} 0
# HELP sockhealth_connections_released_total Connections that left the policy while they were open.
# TYPE sockhealth_connections_released_total counter
sockhealth_connections_released_total{policy="buffer"} 0
# HELP sockhealth_connects_bounded_total Calls of connect() that connect_timeout ended.
# TYPE sockhealth_connects_bounded_total counter
sockhealth_connects_bounded_total{policy="buffer"} 0
# HELP sockhealth_coverage_last_scan_success 1 where the last scan of coverage saw every namespace.
# TYPE sockhealth_coverage_last_scan_success gauge
sockhealth_coverage_last_scan_success 0
# HELP sockhealth_coverage_last_scan_timestamp_seconds When the last scan of coverage ended, 0 before the first.
# TYPE sockhealth_coverage_last_scan_timestamp_seconds gauge
sockhealth_coverage_last_scan_timestamp_seconds 0
# HELP sockhealth_coverage_ratio Share of sockets_expected that is bounded as the policy wants; 1 where there are none, NaN where that is not known.
# TYPE sockhealth_coverage_ratio gauge
sockhealth_coverage_ratio{policy="buffer"} NaN
# HELP sockhealth_deferrals_refused_total Condemned sockets that found too many waiting for the budget.
# TYPE sockhealth_deferrals_refused_total counter
sockhealth_deferrals_refused_total 0
# HELP sockhealth_drift_found_total Connections whose options a scan found changed behind the programs.
# TYPE sockhealth_drift_found_total counter
sockhealth_drift_found_total{policy="buffer"} 0
# HELP sockhealth_drift_repaired_total Connections whose options adoption found changed behind the programs, and brought in line.
# TYPE sockhealth_drift_repaired_total counter
sockhealth_drift_repaired_total{policy="buffer"} 0
# HELP sockhealth_events_dropped_total Events of the BPF programs that found their buffer full.
# TYPE sockhealth_events_dropped_total counter
sockhealth_events_dropped_total 0
# HELP sockhealth_guard_last_pass_success 0 where connections whose peer does not read may be ended by their user timeout.
# TYPE sockhealth_guard_last_pass_success gauge
sockhealth_guard_last_pass_success 1
# HELP sockhealth_guards_total How often a connection began to be guarded.
# TYPE sockhealth_guards_total counter
sockhealth_guards_total{policy="buffer"} 0
# HELP sockhealth_judgements_in_progress Sockets under judgement now.
# TYPE sockhealth_judgements_in_progress gauge
sockhealth_judgements_in_progress 0
# HELP sockhealth_log_lines_dropped_total Lines of the log that were dropped because stderr did not take them.
# TYPE sockhealth_log_lines_dropped_total counter
sockhealth_log_lines_dropped_total 0
# HELP sockhealth_pins_missing Pins that were removed since the agent made them: a stop would leave connections unbounded.
# TYPE sockhealth_pins_missing gauge
sockhealth_pins_missing 0
# HELP sockhealth_policy_last_reload_success 1 where the policy file was taken when it was last read, 0 where it was refused.
# TYPE sockhealth_policy_last_reload_success gauge
sockhealth_policy_last_reload_success 1
# HELP sockhealth_policy_last_reload_timestamp_seconds When the policy file was last taken.
# TYPE sockhealth_policy_last_reload_timestamp_seconds gauge
sockhealth_policy_last_reload_timestamp_seconds 1.7673230455e+09
# HELP sockhealth_policy_unattended_seconds How long, before this agent started, a policy was in force with no agent running.
# TYPE sockhealth_policy_unattended_seconds gauge
sockhealth_policy_unattended_seconds 0
# HELP sockhealth_probes_total Attempts of the in-path probe, by what became of them.
# TYPE sockhealth_probes_total counter
sockhealth_probes_total{kind="keepalive",result="answered"} 0
sockhealth_probes_total{kind="keepalive",result="blocked"} 0
sockhealth_probes_total{kind="keepalive",result="error"} 0
sockhealth_probes_total{kind="keepalive",result="no_route"} 0
sockhealth_probes_total{kind="keepalive",result="unanswered"} 0
sockhealth_probes_total{kind="segment",result="answered"} 0
sockhealth_probes_total{kind="segment",result="blocked"} 0
sockhealth_probes_total{kind="segment",result="error"} 0
sockhealth_probes_total{kind="segment",result="no_route"} 0
sockhealth_probes_total{kind="segment",result="unanswered"} 0
# HELP sockhealth_program_faults_total Steps that failed inside the BPF programs.
# TYPE sockhealth_program_faults_total counter
sockhealth_program_faults_total{reason="callback_flags"} 0
sockhealth_program_faults_total{reason="no_counters"} 0
sockhealth_program_faults_total{reason="no_policy"} 0
sockhealth_program_faults_total{reason="no_socket"} 0
sockhealth_program_faults_total{reason="no_storage"} 0
sockhealth_program_faults_total{reason="no_tcp_socket"} 0
# HELP sockhealth_programs_attached 1 where the programs are on their cgroup: connections that open now are bounded.
# TYPE sockhealth_programs_attached gauge
sockhealth_programs_attached 1
# HELP sockhealth_report_connections Connections to report.sock that are open now.
# TYPE sockhealth_report_connections gauge
sockhealth_report_connections 0
# HELP sockhealth_report_connections_refused_total Connections to report.sock that were over its limits.
# TYPE sockhealth_report_connections_refused_total counter
sockhealth_report_connections_refused_total 0
# HELP sockhealth_reports_total Answers on report.sock, by HTTP status.
# TYPE sockhealth_reports_total counter
sockhealth_reports_total{code="200"} 0
sockhealth_reports_total{code="202"} 0
sockhealth_reports_total{code="400"} 0
sockhealth_reports_total{code="403"} 0
sockhealth_reports_total{code="404"} 0
sockhealth_reports_total{code="405"} 0
sockhealth_reports_total{code="408"} 0
sockhealth_reports_total{code="413"} 0
sockhealth_reports_total{code="429"} 0
sockhealth_reports_total{code="500"} 0
sockhealth_reports_total{code="503"} 0
sockhealth_reports_total{code="other"} 0
# HELP sockhealth_setsockopt_errors_total Socket options that the kernel refused to the BPF programs.
# TYPE sockhealth_setsockopt_errors_total counter
sockhealth_setsockopt_errors_total{option="so_keepalive"} 0
sockhealth_setsockopt_errors_total{option="tcp_keepcnt"} 0
sockhealth_setsockopt_errors_total{option="tcp_keepidle"} 0
sockhealth_setsockopt_errors_total{option="tcp_keepintvl"} 0
sockhealth_setsockopt_errors_total{option="tcp_rto_max_ms"} 0
sockhealth_setsockopt_errors_total{option="tcp_user_timeout"} 0
# HELP sockhealth_silence_cpu_seconds_total CPU that the passes of the silence watch took.
# TYPE sockhealth_silence_cpu_seconds_total counter
sockhealth_silence_cpu_seconds_total 0
# HELP sockhealth_silence_last_pass_success 0 where the silence watch could not look at every connection.
# TYPE sockhealth_silence_last_pass_success gauge
sockhealth_silence_last_pass_success 1
# HELP sockhealth_silence_passes_total Passes of the silence watch over the managed connections.
# TYPE sockhealth_silence_passes_total counter
sockhealth_silence_passes_total 0
# HELP sockhealth_silence_suspects_total Connections that the silence watch had judged.
# TYPE sockhealth_silence_suspects_total counter
sockhealth_silence_suspects_total{policy="buffer"} 0
# HELP sockhealth_sockets Managed connections open now.
# TYPE sockhealth_sockets gauge
sockhealth_sockets{policy="buffer"} 0
# HELP sockhealth_sockets_expected Open connections that the policy names, as the last scan found them.
# TYPE sockhealth_sockets_expected gauge
sockhealth_sockets_expected{policy="buffer"} 0
# HELP sockhealth_sockets_guarded Managed connections whose peer does not read and answers, and whose user timeout is longer for that now.
# TYPE sockhealth_sockets_guarded gauge
sockhealth_sockets_guarded{policy="buffer"} 0
# HELP sockhealth_sockets_pending Managed connections whose options are not all set yet, by what they wait for.
# TYPE sockhealth_sockets_pending gauge
sockhealth_sockets_pending{policy="buffer",wait="budget"} 0
sockhealth_sockets_pending{policy="buffer",wait="error"} 0
sockhealth_sockets_pending{policy="buffer",wait="packet"} 0
sockhealth_sockets_pending{policy="buffer",wait="prober"} 0
sockhealth_sockets_pending{policy="buffer",wait="stuck"} 0
sockhealth_sockets_pending{policy="buffer",wait="window"} 0
# HELP sockhealth_sockets_unmanaged Those of sockets_expected that are not bounded as the policy wants, by reason.
# TYPE sockhealth_sockets_unmanaged gauge
sockhealth_sockets_unmanaged{policy="buffer",reason="error"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="foreign"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="ignored"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="kernel"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="md5_or_ao"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="mptcp"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="not_in_cgroup"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="older"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="options_drifted"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="orphan"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="pending"} 0
sockhealth_sockets_unmanaged{policy="buffer",reason="repair"} 0
# HELP sockhealth_stale_sockets_total Connections that were dead when they ended, by what found it out.
# TYPE sockhealth_stale_sockets_total counter
sockhealth_stale_sockets_total{cause="dead_path",policy="buffer"} 0
sockhealth_stale_sockets_total{cause="hung",policy="buffer"} 0
sockhealth_stale_sockets_total{cause="idle_bound",policy="buffer"} 0
sockhealth_stale_sockets_total{cause="in_flight_bound",policy="buffer"} 0
sockhealth_stale_sockets_total{cause="silent_limit",policy="buffer"} 0
# HELP sockhealth_stalls_total First retransmission timeouts of stalls on managed connections.
# TYPE sockhealth_stalls_total counter
sockhealth_stalls_total{policy="buffer"} 0
# HELP sockhealth_sweeps_failed_total Sweeps that could not look for the siblings of a silent socket.
# TYPE sockhealth_sweeps_failed_total counter
sockhealth_sweeps_failed_total 0
# HELP sockhealth_verdicts_total Judgements, by verdict; policy is empty where no entry names the connection.
# TYPE sockhealth_verdicts_total counter
sockhealth_verdicts_total{policy="",verdict="alive"} 0
sockhealth_verdicts_total{policy="",verdict="alive_hung"} 0
sockhealth_verdicts_total{policy="",verdict="alive_slow"} 0
sockhealth_verdicts_total{policy="",verdict="closed_by_peer"} 0
sockhealth_verdicts_total{policy="",verdict="dead_path"} 0
sockhealth_verdicts_total{policy="",verdict="gone"} 0
sockhealth_verdicts_total{policy="",verdict="local_fault"} 0
sockhealth_verdicts_total{policy="",verdict="local_unread"} 0
sockhealth_verdicts_total{policy="",verdict="unknown"} 0
sockhealth_verdicts_total{policy="",verdict="unmanaged"} 0
sockhealth_verdicts_total{policy="buffer",verdict="alive"} 0
sockhealth_verdicts_total{policy="buffer",verdict="alive_hung"} 0
sockhealth_verdicts_total{policy="buffer",verdict="alive_slow"} 0
sockhealth_verdicts_total{policy="buffer",verdict="closed_by_peer"} 0
sockhealth_verdicts_total{policy="buffer",verdict="dead_path"} 0
sockhealth_verdicts_total{policy="buffer",verdict="gone"} 0
sockhealth_verdicts_total{policy="buffer",verdict="local_fault"} 0
sockhealth_verdicts_total{policy="buffer",verdict="local_unread"} 0
sockhealth_verdicts_total{policy="buffer",verdict="unknown"} 0
sockhealth_verdicts_total{policy="buffer",verdict="unmanaged"} 0
# HELP sockhealth_would_have_closed_live_total Sockets condemned under action: observe that got payload later.
# TYPE sockhealth_would_have_closed_live_total counter
sockhealth_would_have_closed_live_total{policy="buffer"} 0
`

// figures are the series other than 0 of TestFigures.
const figures = `
sockhealth_adoption_last_round_success 1
sockhealth_api_reachable{socket="admin.sock"} 1
sockhealth_api_sockets_remade_total{socket="report.sock"} 85
sockhealth_app_overrides_total{outcome="allowed",policy="buffer"} 13
sockhealth_app_overrides_total{outcome="held",policy="buffer"} 11
sockhealth_app_overrides_total{outcome="kept",policy="buffer"} 10
sockhealth_app_overrides_total{outcome="raised",policy="buffer"} 12
sockhealth_bytes_acked_total{policy="buffer"} 8
sockhealth_bytes_received_total{policy="buffer"} 7
sockhealth_closes_deferred 62
sockhealth_closes_total{action="closed",policy="buffer"} 11041
sockhealth_closes_total{action="deferred",policy="buffer"} 45
sockhealth_closes_total{action="failed",policy="buffer"} 42
sockhealth_closes_total{action="frozen",policy="buffer"} 46
sockhealth_closes_total{action="observed",policy="buffer"} 2043
sockhealth_closing_frozen 1
sockhealth_connections_closed_total{cause="destroyed",policy="buffer"} 5
sockhealth_connections_closed_total{cause="idle_bound",policy="buffer"} 3
sockhealth_connections_closed_total{cause="in_flight_bound",policy="buffer"} 4
sockhealth_connections_closed_total{cause="normal",policy="buffer"} 1
sockhealth_connections_closed_total{cause="other",policy="buffer"} 6
sockhealth_connections_closed_total{cause="reset",policy="buffer"} 2
sockhealth_connections_opened_total{direction="inbound",policy="buffer"} 200
sockhealth_connections_opened_total{direction="outbound",policy="buffer"} 1000
sockhealth_coverage_ratio{policy="buffer"} NaN
sockhealth_deferrals_refused_total 63
sockhealth_events_dropped_total 106
sockhealth_guard_last_pass_success 1
sockhealth_judgements_in_progress 61
sockhealth_log_lines_dropped_total 85
sockhealth_policy_last_reload_timestamp_seconds 1.7673230455e+09
sockhealth_policy_unattended_seconds 81.5
sockhealth_probes_total{kind="segment",result="no_route"} 51
sockhealth_program_faults_total{reason="callback_flags"} 104
sockhealth_program_faults_total{reason="no_counters"} 105
sockhealth_program_faults_total{reason="no_policy"} 102
sockhealth_program_faults_total{reason="no_socket"} 100
sockhealth_program_faults_total{reason="no_storage"} 103
sockhealth_program_faults_total{reason="no_tcp_socket"} 101
sockhealth_programs_attached 1
sockhealth_report_connections 89
sockhealth_report_connections_refused_total 90
sockhealth_reports_total{code="200"} 86
sockhealth_reports_total{code="429"} 87
sockhealth_reports_total{code="other"} 88
sockhealth_setsockopt_errors_total{option="so_keepalive"} 107
sockhealth_setsockopt_errors_total{option="tcp_keepcnt"} 110
sockhealth_setsockopt_errors_total{option="tcp_keepidle"} 108
sockhealth_setsockopt_errors_total{option="tcp_keepintvl"} 109
sockhealth_setsockopt_errors_total{option="tcp_rto_max_ms"} 112
sockhealth_setsockopt_errors_total{option="tcp_user_timeout"} 111
sockhealth_silence_cpu_seconds_total 0.084
sockhealth_silence_last_pass_success 1
sockhealth_silence_passes_total 83
sockhealth_silence_suspects_total{policy="buffer"} 81
sockhealth_sockets{policy="buffer"} 1179
sockhealth_sockets_guarded{policy="buffer"} 81
sockhealth_stale_sockets_total{cause="dead_path",policy="buffer"} 41
sockhealth_stale_sockets_total{cause="hung",policy="buffer"} 1000
sockhealth_stale_sockets_total{cause="idle_bound",policy="buffer"} 3
sockhealth_stale_sockets_total{cause="in_flight_bound",policy="buffer"} 4
sockhealth_stale_sockets_total{cause="silent_limit",policy="buffer"} 10000
sockhealth_stalls_total{policy="buffer"} 9
sockhealth_sweeps_failed_total 64
sockhealth_verdicts_total{policy="",verdict="unmanaged"} 32
sockhealth_verdicts_total{policy="buffer",verdict="dead_path"} 31
sockhealth_would_have_closed_live_total{policy="buffer"} 71
`
