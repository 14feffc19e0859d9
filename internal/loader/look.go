// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// The errors of a look.
var (
	// ErrNotFound says that no socket has the tuple.
	ErrNotFound = errors.New("no such socket")
	// ErrNotConnection says that what has the tuple carries no connection
	// any more, or not yet: TIME_WAIT or a connection request.
	ErrNotConnection = errors.New("no connection")
)

// skb is the part of struct __sk_buff that a test run takes: the device decides
// which bound sockets are found.
type skb struct {
	_       [40]byte
	Ifindex uint32
	_       [148]byte
}

// Look reads the state of the socket with this local and remote address in the
// network namespace of the calling thread, in constant time however many there
// are. A socket bound to a device is found only where ifindex is that device.
//
// What is found need not be what was meant: after an inbound socket closed its
// tuple finds the listener. The caller compares cookie and state. Fields are
// read without the socket's lock.
//
// Errors wrap ErrNotFound or ErrNotConnection where it is that.
func (p *Programs) Look(local, remote netip.AddrPort, ifindex uint32) (conn.Snapshot, error) {
	in := make([]byte, packetSize)
	tuple := lookupShTuple{
		Local: local.Addr().As16(), Remote: remote.Addr().As16(),
		LocalPort: local.Port(), RemotePort: remote.Port(),
	}
	// The rest of the packet is the program's to fill.
	if _, err := binary.Encode(in[unsafe.Offsetof(lookupShLookPacket{}.Tuple):], binary.NativeEndian, &tuple); err != nil {
		return conn.Snapshot{}, fmt.Errorf("look at %s -> %s: %w", local, remote, err)
	}
	opts := ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in))}
	if ifindex != 0 {
		opts.Context = &skb{Ifindex: ifindex}
	}
	result, err := p.lookup.ShLookup.Run(&opts)
	if err == nil {
		err = lookResult(lookupShLookResult(result))
	}
	if err != nil {
		return conn.Snapshot{}, fmt.Errorf("look at %s -> %s: %w", local, remote, err)
	}
	return decodeLook(opts.DataOut[len(in)-lookSize:])
}

func lookResult(r lookupShLookResult) error {
	switch r {
	case lookupShLookResultSH_LOOK_FOUND:
		return nil
	case lookupShLookResultSH_LOOK_NONE:
		return ErrNotFound
	case lookupShLookResultSH_LOOK_MINOR:
		return ErrNotConnection
	}
	return fmt.Errorf("look-up program returned %d", r)
}

// Sizes of struct sh_look, and of the packet that carries it.
var (
	lookSize   = binary.Size(lookupShLook{})
	packetSize = binary.Size(lookupShLookPacket{})
)

// decodeLook turns one struct sh_look into a Snapshot.
func decodeLook(b []byte) (conn.Snapshot, error) {
	var l lookupShLook
	if _, err := binary.Decode(b, binary.NativeEndian, &l); err != nil {
		return conn.Snapshot{}, fmt.Errorf("decode look of %d bytes: %w", len(b), err)
	}
	has := func(f lookupShLookFlags) bool { return l.Flags&uint32(f) != 0 }
	s := conn.Snapshot{
		ID: conn.ID{
			Netns: l.Netns, Family: l.Family, Ifindex: l.BoundDev, Cookie: l.Cookie,
			Local: addrPort(l.Local, l.LocalPort), Remote: addrPort(l.Remote, l.RemotePort),
		},
		Taken: time.Duration(l.TakenNs), State: conn.State(l.State), UID: l.Uid, Cgroup: l.Cgroup,
		BytesReceived: l.BytesReceived, BytesAcked: l.BytesAcked,
		SndUna: l.SndUna, SndNxt: l.SndNxt, WriteSeq: l.WriteSeq,
		RcvNxt: l.RcvNxt, CopiedSeq: l.CopiedSeq,
		SndWnd: l.SndWnd, RcvWnd: l.RcvWnd, RcvWScale: l.RcvWscale,
		DataAge:   time.Duration(l.DataAgeMs) * time.Millisecond,
		PacketAge: time.Duration(l.PacketAgeMs) * time.Millisecond,
		SendAge:   time.Duration(l.SendAgeMs) * time.Millisecond,
		DataStamp: l.DataStamp, AckStamp: l.AckStamp,
		SRTT:        time.Duration(l.SrttUs) * time.Microsecond,
		Retransmits: l.Retransmits, ProbesOut: l.ProbesOut, Timer: time.Duration(l.TimerMs) * time.Millisecond,
		MPTCP:         has(lookupShLookFlagsSH_LOOK_MPTCP),
		MD5OrAO:       has(lookupShLookFlagsSH_LOOK_MD5OR_AO),
		Repair:        has(lookupShLookFlagsSH_LOOK_REPAIR),
		Locked:        has(lookupShLookFlagsSH_LOOK_LOCKED),
		Backlog:       has(lookupShLookFlagsSH_LOOK_BACKLOG),
		Orphan:        has(lookupShLookFlagsSH_LOOK_ORPHAN),
		Kernel:        has(lookupShLookFlagsSH_LOOK_KERNEL),
		IPsec:         has(lookupShLookFlagsSH_LOOK_IPSEC),
		NeverSent:     has(lookupShLookFlagsSH_LOOK_UNSENT),
		Timestamps:    has(lookupShLookFlagsSH_LOOK_TSTAMP),
		TimestampUsec: has(lookupShLookFlagsSH_LOOK_TSTAMP_USEC),
		TSOffset:      l.TsOffset, TSRecent: l.TsRecent,
		Mark: l.Mark, TxHash: l.Txhash, FlowLabel: l.FlowLabel, TOS: l.Tos,
		DstDev: l.DstDev, DstDevUp: !has(lookupShLookFlagsSH_LOOK_DEV_DOWN), SrcDev: l.SrcDev,
		Options: options(l.Options),
		// That of a connect() under way is none of a connection.
		HasRecord: has(lookupShLookFlagsSH_LOOK_RECORD) && l.Record.Flags&uint8(lookupShRecordFlagsSH_CONNECTING) == 0,
	}
	if s.HasRecord {
		s.Record = record(l.Record)
		set := l.Options.UserTimeoutMs
		s.Record.Guarded = set != 0 && (l.Record.GuardMs == set || l.Record.GuardWasMs == set)
	}
	return s, nil
}

func record(r lookupShRecord) conn.Record {
	has := func(f lookupShRecordFlags) bool { return r.Flags&uint8(f) != 0 }
	return conn.Record{
		Policy: r.Policy, Direction: conn.Direction(r.Direction),
		Opened:  time.Duration(r.OpenedNs),
		Policed: options(r.Policed), App: options(r.App), Effective: options(r.Effective),
		Adopted:   has(lookupShRecordFlagsSH_ADOPTED),
		Ambiguous: has(lookupShRecordFlagsSH_AMBIGUOUS),
		Pending:   has(lookupShRecordFlagsSH_PENDING),
		Releasing: has(lookupShRecordFlagsSH_RELEASING),
		Provoked:  has(lookupShRecordFlagsSH_PROVOKED),
		Room:      int(r.Room),
	}
}

func options(o lookupShOptions) conn.Options {
	return conn.Options{
		KeepAlive:   o.Keepalive != 0,
		Idle:        time.Duration(o.IdleS) * time.Second,
		Interval:    time.Duration(o.IntervalS) * time.Second,
		Count:       int(o.Count),
		UserTimeout: time.Duration(o.UserTimeoutMs) * time.Millisecond,
		RTOMax:      time.Duration(o.RtoMax) * 100 * time.Millisecond,
	}
}

// addrPort undoes the mapping of IPv4.
func addrPort(addr [16]byte, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(addr).Unmap(), port)
}
