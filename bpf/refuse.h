/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which connections are not ours to touch. */
#ifndef SOCKHEALTH_REFUSE_H
#define SOCKHEALTH_REFUSE_H

#include "kernels.h"
#include "adopt.h"

/* Why a connection is not ours to touch. */
static __always_inline __u8 refusal(struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;

	if (is_mptcp(tp))
		return SH_REFUSE_MPTCP;
	if (sock_flag(sk, bpf_core_enum_value(enum sock_flags, SOCK_DEAD)))
		return SH_REFUSE_ORPHAN;
	if (BPF_CORE_READ_BITFIELD(tp, repair))
		return SH_REFUSE_REPAIR;
	if (has_keys(tp))
		return SH_REFUSE_MD5_OR_AO;
	if (is_kernels(tp)) /* last: a policy may name them all the same */
		return SH_REFUSE_KERNEL;
	return SH_REFUSE_NONE;
}

#endif
