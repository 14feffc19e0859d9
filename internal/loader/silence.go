// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
)

// Suspect is a managed connection on which a request is out and nothing comes back.
type Suspect struct {
	conn.ID
	Policy uint32 // id of the policy in force on it; see InForce
	// Request is for how long the request is out, at least: since data was last sent
	// that the peer has acknowledged, or since a pass saw the oldest byte that it
	// has not. Heard is the time since anything came from the peer.
	Request, Heard time.Duration
	// InFlight says that data is unacknowledged.
	InFlight bool
	// Asked is how often it was a suspect before, since payload last came.
	Asked int
}

// SilencePass says what one pass came to.
type SilencePass struct {
	Suspects int
	// PutOff are the suspects that found no room: the next pass tells of them.
	PutOff uint64
	// CPU is what the pass took of the calling thread.
	CPU time.Duration
}

// silencer is the silence watch's program.
type silencer struct {
	silenceObjects

	pass sync.Mutex // one pass at a time
	told *InForce   // the policy that the program goes by, held by pass
}

// silencer is what gives kernel.Silence.
func (p *Programs) silencer() (*silencer, error) { return p.loadSilencer(loadSilence) }

func (p *Programs) loadSilencer(load func() (*ebpf.CollectionSpec, error)) (*silencer, error) {
	return p.silence.get(func() (*silencer, error) {
		s := new(silencer)
		if err := p.loadObject("silence", load, &s.silenceObjects); err != nil {
			return nil, lacking(kernel.Silence, err)
		}
		return s, nil
	})
}

// Silent passes over every managed connection in all network namespaces, and calls
// fn for each on which the policy's silence has passed (policy.Peer.Silence): a
// request is out, and nothing comes back. A request is out where data is
// unacknowledged, or, on an outbound connection, where the last word is its own.
// Nothing comes back where neither payload nor an acknowledgement came for that
// long, or, where that is shorter, until a keepalive was due and stayed unanswered.
//
// Each suspect is told of once: again when its request is out for twice as long,
// and so on, until payload comes. A pass tells of some 450 at most. It takes no
// socket's lock and waits for no application; the thread is not given away
// meanwhile, for up to half a microsecond for each connection. What it tells was
// read without the lock: the caller looks again.
//
// The error wraps ErrUnsupported where the kernel refuses the program, ErrNoPolicy
// before the first SetPolicy.
func (p *Programs) Silent(fn func(Suspect)) (pass SilencePass, err error) {
	done, ok := p.use()
	if !ok {
		return pass, fmt.Errorf("watch for silence: %w", ErrClosed)
	}
	defer done()
	s, err := p.silencer()
	if err != nil {
		return pass, err
	}
	s.pass.Lock()
	defer s.pass.Unlock()
	force := p.inForce.Load()
	if force == nil {
		return pass, fmt.Errorf("watch for silence: %w", ErrNoPolicy)
	}
	if err := errors.Join(s.tell(force), s.PutOff.Set(uint64(0))); err != nil {
		return pass, fmt.Errorf("watch for silence: %w", err)
	}
	var found []Suspect
	runtime.LockOSThread() // whose CPU is counted
	defer runtime.UnlockOSThread()
	began := conn.ThreadCPU()
	err = walkOver(link.IterOptions{Program: s.ShSilence, Map: p.sockops.ShRecords}, binary.Size(silenceShSuspect{}), func(b []byte) error {
		one, err := decodeSuspect(b)
		found = append(found, one)
		return err
	})
	pass.CPU = conn.ThreadCPU() - began
	if err != nil {
		return pass, fmt.Errorf("watch for silence: %w", err)
	}
	for i := range found {
		fn(found[i])
	}
	pass.Suspects = len(found)
	return pass, s.PutOff.Get(&pass.PutOff)
}

// tell tells the program what the policy in force says. After an error it is told
// again in the next pass.
func (s *silencer) tell(force *InForce) error {
	if s.told == force {
		return nil
	}
	if s.told != nil {
		for id := range s.told.peers {
			if p := force.Peer(id); p == nil || p.Silence == 0 {
				_ = s.ShSilences.Delete(id) // or it never was there
			}
		}
	}
	for id := range force.peers {
		if silence := force.Peer(id).Silence; silence > 0 {
			if err := s.ShSilences.Put(id, uint32(silence/time.Millisecond)); err != nil {
				return fmt.Errorf("tell of policy %d: %w", id, err)
			}
		}
	}
	s.told = force
	return nil
}

// decodeSuspect turns one struct sh_suspect into a Suspect.
func decodeSuspect(b []byte) (Suspect, error) {
	var s silenceShSuspect
	if _, err := binary.Decode(b, binary.NativeEndian, &s); err != nil {
		return Suspect{}, fmt.Errorf("decode suspect of %d bytes: %w", len(b), err)
	}
	return Suspect{
		ID: conn.ID{
			Netns: s.Netns, Family: s.Family, Ifindex: s.BoundDev, Cookie: s.Cookie,
			Local: addrPort(s.Local, s.LocalPort), Remote: addrPort(s.Remote, s.RemotePort),
		},
		Policy:   s.Policy,
		Request:  time.Duration(s.RequestMs) * time.Millisecond,
		Heard:    time.Duration(s.HeardMs) * time.Millisecond,
		InFlight: s.InFlight != 0, Asked: int(s.Asked),
	}, nil
}
