// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"

	"go.yaml.in/yaml/v4"
)

// choice is a word of the file and what it means.
type choice[T any] struct {
	word  string
	value T
}

// choose is a key whose value is one of a few words. def is the value that
// holds where the key is left out.
func choose[T comparable](d *decoder, s *setting[T], name string, def T, choices ...choice[T]) field {
	f := field{name: name}
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = c.word
		if c.value == def {
			f.def = c.word
		}
	}
	f.want = strings.Join(words, ", ")
	f.read = func(n *yaml.Node) {
		s.at, s.bad = at(n), true
		text, ok := d.scalar(n, name)
		if !ok {
			return
		}
		for _, c := range choices {
			if c.word == text {
				s.value, s.bad = c.value, false
				return
			}
		}
		d.errorf(at(n), "%s %s is unknown: write %s", name, quote(text), either(words))
	}
	return f
}

// either writes "a, b or c".
func either(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
