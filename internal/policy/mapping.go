// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"

	"go.yaml.in/yaml/v4"
)

// field is one key of a mapping. Exactly one of read and sub is set.
type field struct {
	name string
	// def and want are the default and the range as the documentation gives
	// them; def is "" for a key without a default.
	def, want string
	// read takes the value of the key.
	read func(n *yaml.Node)
	// sub are the keys of a nested mapping. mark, where it is not nil, learns
	// where that was given, and whether it was no mapping.
	sub  []field
	mark *mark
}

// mapping reads the keys of a mapping, each by its field. It returns false
// where n is no mapping.
func (d *decoder) mapping(n *yaml.Node, what string, fields []field) bool {
	if !d.own(n, what) {
		return false
	}
	if n.Kind != yaml.MappingNode {
		bare := ""
		if quoted(n) {
			bare = ", without quotes"
		}
		d.errorf(at(n), "%s is a %s: write a mapping with %s%s", what, kindName(n), names(fields), bare)
		return false
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			d.errorf(at(key), "merge key <<: write the keys themselves, a policy has no aliases")
			continue
		}
		name, ok := d.scalar(key, "key")
		if !ok {
			continue
		}
		if line, again := seen[name]; again {
			d.errorf(at(key), "duplicate key %s: remove it, the first stands on line %d", quote(name), line)
			continue
		}
		seen[name] = key.Line
		d.field(key, value, fields)
	}
	return true
}

func (d *decoder) field(key, value *yaml.Node, fields []field) {
	for _, f := range fields {
		switch {
		case f.name != key.Value:
			continue
		case f.sub != nil:
			ok := d.mapping(value, f.name, f.sub)
			if f.mark != nil {
				f.mark.at, f.mark.bad = at(key), !ok
			}
		default:
			f.read(value)
		}
		return
	}
	if guess := nearest(key.Value, fields); guess != "" {
		d.errorf(at(key), "unknown key %s: write %s", quote(key.Value), guess)
		return
	}
	d.errorf(at(key), "unknown key %s: known here are %s", quote(key.Value), names(fields))
}

// names lists the keys in the order of the documentation.
func names(fields []field) string {
	list := make([]string, len(fields))
	for i, f := range fields {
		list[i] = f.name
	}
	return strings.Join(list, ", ")
}

// nearest returns the field that word was probably meant to be, or "".
func nearest(word string, fields []field) string {
	best, name := 3, ""
	for _, f := range fields {
		if len(word)-len(f.name) > 2 || len(f.name) <= 3 {
			continue
		}
		if n := distance(word, f.name); n < best {
			best, name = n, f.name
		}
	}
	return name
}

// distance is the number of bytes to insert, delete or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, above, row[j])
			}
			row[j+1], diagonal = cost, above
		}
	}
	return row[len(b)]
}
