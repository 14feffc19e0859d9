// SPDX-License-Identifier: Apache-2.0

package loader

import "fmt"

// Feature is an ability that the agent can do without.
type Feature struct {
	Name string // "scan" or "provoke"
	Err  error  // why this kernel does not give it, nil where it does
}

// Features lists the optional abilities, each once.
func (p *Programs) Features() []Feature {
	return []Feature{
		{Name: "scan", Err: p.iterErr},
		{Name: "provoke", Err: p.provokeErr},
	}
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

// Attachments is how many programs Attach attaches.
const Attachments = len(attachments)

// attachments names the programs in the order in which Attach attaches them.
var attachments = [...]string{"setsockopt", "sockops"}
