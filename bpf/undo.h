/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What sockops takes back of what was set: it needs the record as that finds it. */
#ifndef SOCKHEALTH_UNDO_H
#define SOCKHEALTH_UNDO_H

#include "guard.h"

/*
 * close(): of data that nobody owns any more the kernel lets go at once where the
 * retransmission timeout has come to its limit (kernel-facts L11). So the limit is what
 * it was before, and the user timeout bounds what it bounded; not so where a window is
 * shut, which it would end although its peer lives (L1).
 */
__noinline int sh_closing(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_record *rec;
	__u32 ms;

	if (!tp || !bpf_core_field_exists(tp->inet_conn.icsk_rto_max) ||
	    tp->inet_conn.icsk_inet.sk.sk_shutdown != SHUTDOWN_MASK)
		return 0;
	rec = record_of(tp);
	if (!rec || !rec->rto_was_ms)
		return 0;
	set_opt(ctx, SOL_TCP, TCP_RTO_MAX_MS, rec->rto_was_ms, SH_FAULT_SET_RTO_MAX);
	rec->rto_was_ms = 0;
	rec->pace = 0;
	if (!rec->effective.rto_max)
		return 0; /* the guard's, which has the user timeout, too */
	rec->effective.rto_max = 0;
	ms = rec->policed.user_timeout_ms;
	if (rec->effective.user_timeout_ms || is_shut(tp))
		return 0;
	rec->effective.user_timeout_ms = ms;
	set_opt(ctx, SOL_TCP, TCP_USER_TIMEOUT, ms, SH_FAULT_SET_USER_TIMEOUT);
	return 0;
}

/*
 * What a guard left that is gone would put off for the time of a window that was shut
 * what bounds the stall. Where a window has left its mark it stays (kernel-facts L9).
 */
__noinline int sh_unguard(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tp = ctx_tcp_sock(ctx);
	struct sh_record *rec;
	__u32 ms;

	if (!tp || !tp->snd_wnd || !bpf_core_field_exists(tp->inet_conn.icsk_probes_tstamp) ||
	    tp->inet_conn.icsk_probes_tstamp)
		return 0;
	rec = record_of(tp);
	if (!rec || !is_guards(rec, tp->inet_conn.icsk_user_timeout))
		return 0;
	ms = rec->effective.user_timeout_ms;
	set_opt(ctx, SOL_TCP, TCP_USER_TIMEOUT, ms, SH_FAULT_SET_USER_TIMEOUT);
	rec->flags &= ~SH_GUARDED;
	return 0;
}

#endif
