package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// dropInSuffix ends the names of the files of a directory that are read.
const dropInSuffix = ".conf"

// loadDir merges the files of a directory into c, as the kubelet does with its --config-dir
// (KEP-3983): in the order of their names, those of directories below it in their place. A
// map's keys are merged, a list takes another's place, null is the default.
func (c *Config) loadDir(dir string, known bool) error {
	names, err := dropIns(dir)
	if err != nil {
		return fmt.Errorf("--config-dir: %w", err)
	}
	if len(names) == 0 {
		return nil
	}
	whole, err := json.Marshal(c)
	if err != nil {
		return err
	}
	defaults, err := defaultFields()
	if err != nil {
		return err
	}
	for _, name := range names {
		if whole, err = mergeFile(whole, name, defaults, known); err != nil {
			return fmt.Errorf("--config-dir: %s: %w", name, err)
		}
	}
	out := Config{Hollow: c.Hollow} // what is left out has been set to nothing
	if err := json.Unmarshal(whole, &out); err != nil {
		return fmt.Errorf("--config-dir: %w", err)
	}
	if out.MergeDefaultEvictionSettings {
		own := out.EvictionHard
		out.EvictionHard = Default().EvictionHard
		maps.Copy(out.EvictionHard, own)
	}
	*c = out
	return nil
}

// dropIns are the files of a directory that are read, in their order.
func dropIns(dir string) (names []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == dropInSuffix {
			names = append(names, path)
		}
		return err
	})
	return names, err
}

func defaultFields() (map[string]json.RawMessage, error) {
	text, err := json.Marshal(Default())
	if err != nil {
		return nil, err
	}
	out := map[string]json.RawMessage{}
	return out, json.Unmarshal(text, &out)
}

// mergeFile merges a file into a whole configuration.
func mergeFile(whole []byte, name string, defaults map[string]json.RawMessage, known bool) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if err := check(text, known); err != nil {
		return nil, err
	}
	patch := map[string]json.RawMessage{}
	if err := yaml.Unmarshal(text, &patch); err != nil {
		return nil, err
	}
	back := map[string]json.RawMessage{}
	for field, value := range patch {
		if standard, has := defaults[field]; has && bytes.Equal(value, []byte("null")) {
			back[field] = standard
			delete(patch, field)
		}
	}
	if whole, err = mergePatch(whole, patch); err != nil || len(back) == 0 {
		return whole, err
	}
	return replace(whole, back)
}

// check tells what is wrong with a file by itself.
func check(text []byte, known bool) error {
	toJSON, decode := yaml.YAMLToJSONStrict, yaml.UnmarshalStrict
	if known {
		toJSON = yaml.YAMLToJSON
		decode = func(text []byte, into any, _ ...yaml.JSONOpt) error { return yaml.Unmarshal(text, into) }
	}
	text, err := toJSON(text)
	if err != nil {
		return err
	}
	said := map[string]any{}
	if err := json.Unmarshal(text, &said); err != nil {
		return err
	}
	withoutNulls(said)
	if text, err = json.Marshal(said); err != nil {
		return err
	}
	var own Config
	if err := decode(text, &own); err != nil {
		return err
	}
	if want := Default().TypeMeta; own.TypeMeta != want {
		return fmt.Errorf("apiVersion and kind are %s and have to be %s", typeText(own.TypeMeta), typeText(want))
	}
	return nil
}

// withoutNulls leaves out what is null, which not every field's type knows.
func withoutNulls(m map[string]any) {
	for key, v := range m {
		switch v := v.(type) {
		case nil:
			delete(m, key)
		case map[string]any:
			withoutNulls(v)
		}
	}
}

func typeText(t metav1.TypeMeta) string { return fmt.Sprintf("%q and %q", t.APIVersion, t.Kind) }

func mergePatch(whole []byte, patch map[string]json.RawMessage) ([]byte, error) {
	text, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return jsonpatch.MergePatch(whole, text)
}

// replace has fields take the place of those of a whole configuration, maps too.
func replace(whole []byte, by map[string]json.RawMessage) ([]byte, error) {
	out := map[string]json.RawMessage{}
	if err := json.Unmarshal(whole, &out); err != nil {
		return nil, err
	}
	maps.Copy(out, by)
	return json.Marshal(out)
}
