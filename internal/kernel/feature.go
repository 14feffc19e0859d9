// SPDX-License-Identifier: Apache-2.0

package kernel

// Feature is an ability that the agent can do without.
type Feature uint8

// The features. Their names are those of doctor, status and docs/kernels.md.
const (
	// Hold is bpf_setsockopt in cgroup/setsockopt programs: when an application
	// changes one option, the others can follow.
	Hold Feature = iota
	// Scan is bpf_sk_storage_get in a TCP iterator: one walk reads every socket
	// of a namespace with its record.
	Scan
	// Provoke is bpf_setsockopt in a TCP iterator: the kernel's own keepalive
	// can be made to probe.
	Provoke
	// ForeignSource is a raw IPv4 socket that binds to an address of another host
	// (commit 0ce779a9f501): the probe of a transparent proxy's connection.
	ForeignSource
	// BPFDestroy is bpf_sock_destroy in a TCP iterator.
	BPFDestroy
	// Adopt is bpf_setsockopt in a TCP iterator, on connections that the
	// programs did not see open.
	Adopt
	// AdoptEvents is the callback flags of sockops among what bpf_setsockopt
	// can set: those connections are told of like the others.
	AdoptEvents
	// SocketCgroup is a pointer to the cgroup in every socket (commit
	// 8520e224f547); before, it shares its word with a class of net_cls.
	SocketCgroup
	// Silence is an iterator over the records in sockets, in all namespaces: the
	// silence watch. Every kernel from the floor on has it, unless it is refused.
	Silence
	// Guard is bpf_setsockopt in a TCP iterator: the user timeout of a connection
	// whose peer does not read can be lengthened for the time.
	Guard
	// RTOCap is TCP_RTO_MAX_MS: the retransmission timeout can be
	// limited, so that the kernel's own number of retransmissions bounds a connection.
	RTOCap
)

// features is what is known of each.
var features = [...]struct {
	name    string
	since   Release
	without string
}{
	Hold:          {"hold", Release{5, 15}, "an application's own setsockopt is held option by option: the bound stays, its shape may differ"},
	Scan:          {"scan", Release{5, 11}, "sockets are listed by inet_diag and looked at one by one"},
	Provoke:       {"provoke", Release{5, 15}, "segments of ours probe, and a connection with nothing in flight is condemned only once a keepalive of its own stayed unanswered, too"},
	BPFDestroy:    {"bpf_destroy", Release{6, 5}, "sockets are closed by inet_diag alone"},
	Adopt:         {"adopt", Release{5, 15}, "connections that are older than the agent, or were opened outside its cgroup, are not bounded"},
	AdoptEvents:   {"adopt_events", Release{6, 12}, "the close of an adopted connection is told by a tracepoint, and its stalls are not told"},
	Guard:         {"guard", Release{5, 15}, "a peer that reads nothing for longer than the user timeout loses its connection, although it answers the kernel's probes"},
	RTOCap:        {"rto_cap", Release{6, 15}, "in_flight: rto_cap bounds as user_timeout does, and the end of a guarded connection is noticed in three minutes rather than by its user timeout"},
	SocketCgroup:  {"socket_cgroup", Release{5, 15}, "events, the log and the list of sockets name no containers and pods"},
	Silence:       {"silence", Release{5, 10}, "nothing is judged without a report, whatever the policy's silence says"},
	ForeignSource: {"foreign_source", Release{5, 17}, "a transparent proxy's IPv4 connections are never condemned: a segment of ours finds no way out, and they are told as local_fault"},
}

// Features lists all.
func Features() []Feature {
	out := make([]Feature, len(features))
	for i := range out {
		out[i] = Feature(i)
	}
	return out
}

// String returns the name.
func (f Feature) String() string { return features[f].name }

// Since returns the first release that has it.
func (f Feature) Since() Release { return features[f].since }

// Without says what the agent does without it.
func (f Feature) Without() string { return features[f].without }

// Expected reports whether a kernel of this release ought to have it.
func (f Feature) Expected(r Release) bool { return !r.Before(f.Since()) }
