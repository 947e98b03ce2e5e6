package main

import (
	"bytes"
	"errors"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// changeYAML sets keys at the top of a YAML file and leaves all else as it is, its
// comments too. Keys that are there already keep their place.
func changeYAML(old []byte, changes map[string]any) ([]byte, error) {
	var file yaml.Node
	if err := yaml.Unmarshal(old, &file); err != nil {
		return nil, err
	}
	if file.Kind == 0 || len(file.Content) == 1 && file.Content[0].Tag == "!!null" {
		// A file of comments is no document for the library: they are kept as they are.
		file = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	} else {
		old = nil
	}
	if len(file.Content) != 1 || file.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("it is no map of settings")
	}
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		var value yaml.Node
		if err := value.Encode(changes[key]); err != nil {
			return nil, err
		}
		setKey(file.Content[0], key, &value)
	}
	var out bytes.Buffer
	if len(old) > 0 {
		out.Write(bytes.TrimRight(old, "\n"))
		out.WriteByte('\n')
	}
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	err := errors.Join(encoder.Encode(&file), encoder.Close())
	return out.Bytes(), err
}

func setKey(m *yaml.Node, key string, value *yaml.Node) {
	if value.Kind == yaml.SequenceNode {
		value.Style = yaml.FlowStyle
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			value.LineComment, value.FootComment = m.Content[i+1].LineComment, m.Content[i+1].FootComment
			m.Content[i+1] = value
			return
		}
	}
	m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
}
