// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// attachment is one program at its place.
type attachment struct {
	name string
	typ  ebpf.AttachType
	prog *ebpf.Program
}

// Names of the attachments, also those of their pins.
const (
	setsockoptName = "setsockopt"
	sockopsName    = "sockops"
	// endedName is the pin of the tracepoint, where one is attached: no cgroup's.
	endedName = "ended"
)

// attachments names the programs in the order in which Attach attaches them: first
// the one that holds the bound, so that a connection which opens between the two is
// not left with options that nothing guards.
var attachments = [...]string{setsockoptName, sockopsName}

// Attachments is how many programs Attach attaches.
const Attachments = len(attachments)

// at are the programs, in the order of attachments.
func at(setsockopt, sockops *ebpf.Program) [Attachments]attachment {
	return [...]attachment{
		{setsockoptName, ebpf.AttachCGroupSetsockopt, setsockopt},
		{sockopsName, ebpf.AttachCGroupSockOps, sockops},
	}
}

// Attach attaches sockops and setsockopt programs to a cgroup v2 directory;
// they see the sockets made in it and below. After an error nothing stays
// attached that was not before; what is pinned by then Abandon removes. The
// programs come off again with Close, unless they are pinned.
//
// Pinned programs take the place of those that are attached: by a swap of the
// program in its link, where that is at the same cgroup, so that no connection
// opens or changes its options unseen meanwhile.
func (p *Programs) Attach(cgroup string) error {
	if err := checkCgroup(cgroup); err != nil {
		return err
	}
	if err := p.awaitAlone(cgroup); err != nil {
		return err
	}
	if p.pins != nil {
		return p.attachPinned(cgroup)
	}
	for _, a := range at(p.sockops.ShSetsockopt, p.sockops.ShSockops) {
		l, err := a.attach(cgroup)
		if err != nil {
			p.letGo()
			return err
		}
		p.links = append(p.links, l)
	}
	return nil
}

func (a *attachment) attach(cgroup string) (link.Link, error) {
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: a.typ, Program: a.prog})
	if err != nil {
		return nil, attachError(a.name, cgroup, err)
	}
	return l, nil
}

func attachError(name, cgroup string, err error) error {
	if errors.Is(err, unix.EPERM) {
		if f := barrier(name, cgroup); f != nil {
			return f.Conflict(cgroup)
		}
		return &MissingError{
			What:   fmt.Sprintf("cgroup %q or one above it has a %s program that allows no other", cgroup, name),
			Remedy: "find it with: bpftool cgroup tree; it must be attached with BPF_F_ALLOW_MULTI",
			Err:    err,
		}
	}
	return fmt.Errorf("attach %s to cgroup %q: %w", name, cgroup, err)
}

// letGo closes the links: those that are not pinned take their programs off.
func (p *Programs) letGo() {
	for _, l := range p.links {
		_ = l.Close()
	}
	p.links = nil
	p.found.close()
}
