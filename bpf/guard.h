/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the guard has set on a socket, for whoever else sets its options. */
#ifndef SOCKHEALTH_GUARD_H
#define SOCKHEALTH_GUARD_H

#include "set.h"

/*
 * Whether a shut window has left its mark: a probe is unanswered or was answered with
 * a window still shut, or the window opened by less than the next segment, which keeps
 * the time of the first probe for the next time (kernel-facts L9).
 */
static __always_inline bool is_shut(const struct tcp_sock *tp)
{
	__u32 shrunk = if_any(tp->packets_out) & if_equal(tp->snd_wnd, 0) & tp->retrans_stamp;

	return if_any(tp->inet_conn.icsk_probes_tstamp | shrunk) & 1;
}

/* Whether the user timeout is the guard's. */
static __always_inline bool is_guards(const struct sh_record *rec, __u32 user_timeout_ms)
{
	__u32 now = rec->guard_ms, was = rec->guard_was_ms;

	return ((if_any(now) & if_equal(now, user_timeout_ms)) |
		(if_any(was) & if_equal(was, user_timeout_ms))) &
	       1;
}

/*
 * What is set on the socket, in out, which may be the record's own effective. Where
 * the guard has its hand in, that is what it puts back.
 */
static __always_inline void options_meant(const struct tcp_sock *tp, const struct sh_record *rec,
					  struct sh_options *out, bool *guarded)
{
	__u32 user_timeout_ms = rec->effective.user_timeout_ms;
	__u8 rto_max = rec->effective.rto_max;
	__u32 lower;

	sock_options(tp, out);
	/* A lower one is the application's, or the guard's; 0 is above any of ours. */
	lower = if_less((__u8)(out->rto_max - 1), rto_max);
	out->rto_max = choose_if(lower | if_equal(rto_max, 0) | if_equal(rec->override, SH_ALLOW),
				 rto_max, out->rto_max);
	*guarded = is_guards(rec, out->user_timeout_ms);
	out->user_timeout_ms = choose_if(if_any(*guarded), user_timeout_ms, out->user_timeout_ms);
}

/* Limits the retransmission timeout; 0: as it was before. */
static __always_inline void set_rto_max(struct tcp_sock *tp, struct sh_record *rec, __u32 ms)
{
	__u32 is = sock_rto_max_ms(tp);

	if (!is)
		return; /* this kernel cannot */
	if (!ms) {
		ms = rec->rto_was_ms;
		rec->rto_was_ms = 0;
	} else if (!rec->rto_was_ms) {
		rec->rto_was_ms = is;
	}
	if (ms && ms != is)
		set_opt(tp, SOL_TCP, TCP_RTO_MAX_MS, ms, SH_FAULT_SET_RTO_MAX);
}

#endif
