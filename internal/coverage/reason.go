// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// Reason is why a connection that a policy names is not bounded as it wants. ""
// is one that is. The words are those of the API, the CLI and the metrics.
type Reason string

// The reasons: first those without a record.
const (
	// Older was not seen to open: it is older than the programs.
	Older Reason = "older"
	// NotInCgroup was made outside the programs' cgroup (by the cgroup of its
	// process when it made the socket, kernel-facts S10).
	NotInCgroup Reason = "not_in_cgroup"
	// Ignored was not seen to open, and its policy says existing: ignore.
	Ignored Reason = "ignored"
	// MPTCP, MD5OrAO, Repair, Kernel and Orphan are not ours to touch: Kernel where
	// the entry does not say kernel_sockets: manage.
	MPTCP   Reason = "mptcp"
	MD5OrAO Reason = "md5_or_ao"
	Repair  Reason = "repair"
	Kernel  Reason = "kernel"
	Orphan  Reason = "orphan"
	// Error is listed by inet_diag, and no look could be had at it.
	Error Reason = "error"

	// Pending has a record, and not all is set yet that its policy wants.
	Pending Reason = "pending"
	// OptionsDrifted has other options than its record says.
	OptionsDrifted Reason = "options_drifted"
	// Foreign has drifted where our programs see what its application sets, and
	// where BPF programs of somebody else are attached, too.
	Foreign Reason = "foreign"
)

// Reasons returns all of them, in the order of the documentation.
func Reasons() []Reason {
	return []Reason{
		Older, NotInCgroup, Ignored, MPTCP, MD5OrAO, Repair, Kernel, Orphan, Error, Pending, OptionsDrifted, Foreign,
	}
}

// drift reports whether the options were changed behind the programs.
func (r Reason) drift() bool { return r == OptionsDrifted || r == Foreign }

// mendable reports whether adoption ought to bring such a connection in line.
func (r Reason) mendable() bool {
	return r == Older || r == NotInCgroup || r == Error || r.drift()
}

// Unrecorded says why a socket that an entry of the policy names has no record, as
// far as it tells itself; Older where it tells nothing.
func Unrecorded(s *conn.Snapshot, peer *policy.Peer) Reason {
	switch {
	case s.MPTCP:
		return MPTCP
	case s.Orphan:
		return Orphan
	case s.Repair:
		return Repair
	case s.MD5OrAO:
		return MD5OrAO
	case s.Kernel && !peer.KernelSockets:
		return Kernel
	}
	return Older
}
