// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Ranges of the kernel (kernel-facts T13) and of the probe.
const (
	maxKeepalive   = 32767 * time.Second
	maxCount       = 127
	maxUserTimeout = (1<<31 - 1) * time.Millisecond
	probeSpacing   = 500 * time.Millisecond // kernel-facts P5
	maxWindow      = time.Minute
	maxAttempts    = int(maxWindow / probeSpacing)
	maxSilent      = 24 * time.Hour
	minSilence     = time.Second // a keepalive can be provoked after that much
	// The kernel looks at a connect() for the first time when its first SYN has been
	// unanswered for a second; with its own defaults it gives up after about two minutes.
	minConnect = time.Second
	maxConnect = 10 * time.Minute
)

// file is the whole file before it is checked as a whole.
type file struct {
	at       pos
	version  pos
	peersAt  pos
	defaults settings
	limits   limits
	peers    []*entry
}

// entry is one peer before it is checked. The bad flags say that a list
// lacks elements that were refused.
type entry struct {
	at              pos
	name            string
	nameAt, cidrsAt pos
	cidrs, except   []CIDR
	cidrsBad        bool
	ports           []PortRange
	portsBad        bool
	app             appProbe
	settings        settings
}

// fileFields are the keys of the file.
func (d *decoder) fileFields(f *file) []field {
	return []field{
		{name: "version", want: "1", read: func(n *yaml.Node) { f.version = at(n); d.version(n) }},
		{name: "defaults", sub: d.settingFields(&f.defaults)},
		{name: "limits", sub: d.limitFields(&f.limits)},
		{name: "peers", want: "1 to 1024 entries", read: func(n *yaml.Node) { f.peersAt = at(n); d.peers(n, f) }},
	}
}

// peerFields are the keys of one peer.
func (d *decoder) peerFields(e *entry) []field {
	fields := []field{
		{name: "name", want: "1 to 63 of a-z, 0-9, _, ., -", read: func(n *yaml.Node) { d.name(n, e) }},
		{name: "cidrs", want: "1 or more", read: func(n *yaml.Node) { d.cidrs(n, e) }},
		{name: "except", def: "none", want: "inside cidrs", read: func(n *yaml.Node) { d.except(n, e) }},
		{name: "ports", def: "all", want: "1 to 65535", read: func(n *yaml.Node) { d.ports(n, e) }},
		d.appProbeField(&e.app),
	}
	return append(fields, d.settingFields(&e.settings)...)
}

// settingFields are the keys of defaults, and of each peer.
func (d *decoder) settingFields(s *settings) []field {
	b := builtin()
	keepalive := []field{
		{name: "idle", def: short(b.idle.value), want: "1s to 32767s",
			read: duration(d, &s.idle, "keepalive idle", time.Second, maxKeepalive, time.Second)},
		{name: "interval", def: short(b.interval.value), want: "1s to 32767s",
			read: duration(d, &s.interval, "keepalive interval", time.Second, maxKeepalive, time.Second)},
		{name: "count", def: strconv.Itoa(b.count.value), want: "1 to 127",
			read: number(d, &s.count, "keepalive count", 1, maxCount)},
	}
	probe := []field{
		{name: "window", def: short(b.window.value), want: "500ms to 1m",
			read: duration(d, &s.window, "probe window", probeSpacing, maxWindow, time.Millisecond)},
		{name: "attempts", def: strconv.Itoa(b.attempts.value), want: "1 to 120",
			read: number(d, &s.attempts, "probe attempts", 1, maxAttempts)},
	}
	return []field{
		{name: "user_timeout", def: short(b.userTimeout.value), want: "1ms to 2147483647ms",
			read: duration(d, &s.userTimeout, "user_timeout", time.Millisecond, maxUserTimeout, time.Millisecond)},
		{name: "keepalive", sub: keepalive},
		choose(d, &s.directions, "direction", b.directions.value, choice[Directions]{"outbound", Directions(conn.Outbound)},
			choice[Directions]{"inbound", Directions(conn.Inbound)}, choice[Directions]{"both", Both}),
		choose(d, &s.override, "app_override", b.override.value,
			choice[Override]{"tighten", Tighten}, choice[Override]{"enforce", Enforce}, choice[Override]{"allow", Allow}),
		choose(d, &s.leaveExisting, "existing", b.leaveExisting.value, choice[bool]{"adopt", false}, choice[bool]{"ignore", true}),
		choose(d, &s.kernelSockets, "kernel_sockets", b.kernelSockets.value, choice[bool]{"ignore", false}, choice[bool]{"manage", true}),
		choose(d, &s.inFlight, "in_flight", b.inFlight.value,
			choice[InFlight]{"user_timeout", ByUserTimeout}, choice[InFlight]{"rto_cap", ByRTOCap}, choice[InFlight]{"auto", Auto}),
		{name: "connect_timeout", def: "off", want: "off, 1s to 10m",
			read: durationOrOff(d, &s.connect, "connect_timeout", minConnect, maxConnect, time.Millisecond)},
		{name: "probe", sub: probe},
		{name: "silence", def: "off", want: "off, 1s to 24h",
			read: durationOrOff(d, &s.silence, "silence", minSilence, maxSilent, time.Millisecond)},
		{name: "close_silent_after", def: "off", want: "off, 500ms to 24h",
			read: durationOrOff(d, &s.silent, "close_silent_after", probeSpacing, maxSilent, time.Millisecond)},
		choose(d, &s.observe, "action", b.observe.value, choice[bool]{"close", false}, choice[bool]{"observe", true}),
	}
}

func (d *decoder) version(n *yaml.Node) {
	text, ok := d.scalar(n, "version")
	switch {
	case !ok:
	case quoted(n):
		d.errorf(at(n), "version %s is text: write version: 1, without quotes", quote(text))
	case n.Tag != "!!int" || text != "1":
		d.errorf(at(n), "version %s is unknown: write version: 1", quote(text))
	}
}

func (d *decoder) peers(n *yaml.Node, f *file) {
	nodes, ok := d.list(n, "peers")
	if !ok {
		return
	}
	if len(nodes) == 0 {
		d.errorf(at(n), "peers is empty: add a peer with name and cidrs")
	}
	if len(nodes) > MaxPeers {
		d.errorf(at(nodes[MaxPeers]), "peer %d of %d is above the limit of %d: give one peer several cidrs", MaxPeers+1, len(nodes), MaxPeers)
	}
	for _, one := range nodes {
		e := &entry{at: at(one), app: builtinProbe()}
		if d.mapping(one, "a peer", d.peerFields(e)) {
			f.peers = append(f.peers, e)
		}
	}
}
