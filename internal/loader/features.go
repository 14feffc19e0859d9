// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/btf"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// Features lists those that the programs have where the kernel gives them.
func Features() []kernel.Feature {
	return []kernel.Feature{kernel.Hold, kernel.Scan, kernel.Provoke, kernel.BPFDestroy, kernel.Silence}
}

// socketCgroup returns why programs cannot tell which cgroup a socket belongs to.
func (t *Types) socketCgroup() error {
	return t.hasMember("sock_cgroup_data", "cgroup")
}

// capsRTO returns why the retransmission timeout cannot be limited.
func (p *Programs) capsRTO() error {
	p.caps.Do(func() {
		if err := p.types.hasMember("inet_connection_sock", "icsk_rto_max"); err != nil {
			p.noCap = lacking(kernel.RTOCap, err)
		}
	})
	return p.noCap
}

// hasMember returns why a struct of the kernel's lacks a member, nil where it does not.
func (t *Types) hasMember(name, member string) error {
	spec, err := t.kernel()
	if err != nil {
		return fmt.Errorf("read the kernel's types: %w", err)
	}
	var data *btf.Struct
	if err := spec.TypeByName(name, &data); err != nil {
		return fmt.Errorf("read the kernel's types: %w", err)
	}
	if !slices.ContainsFunc(data.Members, func(m btf.Member) bool { return m.Name == member }) {
		return fmt.Errorf("struct %s has no %s", name, member)
	}
	return nil
}

// Attached returns the names of the programs that the kernel has attached to
// the cgroup now, in the order of their attachment: setsockopt and sockops.
// A cgroup that was removed took them off without a word.
func (p *Programs) Attached() ([]string, error) {
	var names []string
	for i, l := range p.links {
		info, err := l.Info()
		if err != nil {
			return nil, fmt.Errorf("ask for the attachment of %s: %w", attachments[i], err)
		}
		if c := info.Cgroup(); c != nil && c.CgroupId != 0 {
			names = append(names, attachments[i])
		}
	}
	return names, nil
}
