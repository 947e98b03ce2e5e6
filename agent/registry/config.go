package registry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	credentialv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"sigs.k8s.io/yaml"
)

var (
	configVersion = metav1.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1", Kind: "CredentialProviderConfig"}
	pluginVersion = credentialv1.SchemeGroupVersion.String()
)

// LoadPlugins reads the kubelet's CredentialProviderConfig (v1) from a file, or from all
// .json, .yaml and .yml files of a directory in the order of their names. The plugins are
// in binDir. Errors name the file and the field.
func LoadPlugins(file, binDir string) ([]*Plugin, error) {
	files, err := configFiles(file)
	if err != nil {
		return nil, fmt.Errorf("imageCredentialProviderConfig: %w", err)
	}
	var out []*Plugin
	for _, f := range files {
		list, err := loadFile(f, binDir)
		if err != nil {
			return nil, fmt.Errorf("imageCredentialProviderConfig %s: %w", f, err)
		}
		for _, p := range list {
			if slices.ContainsFunc(out, func(o *Plugin) bool { return o.name == p.name }) {
				return nil, fmt.Errorf("imageCredentialProviderConfig %s: there are two providers %q", f, p.name)
			}
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("imageCredentialProviderConfig %s: it has no providers", file)
	}
	return out, nil
}

func configFiles(file string) ([]string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{file}, nil
	}
	list, err := os.ReadDir(file)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range list {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".json" || ext == ".yaml" || ext == ".yml") {
			out = append(out, filepath.Join(file, e.Name()))
		}
	}
	return out, nil
}

func loadFile(file, binDir string) ([]*Plugin, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var c kubeletv1.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return nil, err
	}
	if c.TypeMeta != configVersion {
		return nil, fmt.Errorf("it is %s %q; only %s %q is known", c.APIVersion, c.Kind, configVersion.APIVersion,
			configVersion.Kind)
	}
	var out []*Plugin
	for i := range c.Providers {
		p := &c.Providers[i]
		if err := check(p, binDir); err != nil {
			return nil, fmt.Errorf("providers[%d] %q: %w", i, p.Name, err)
		}
		out = append(out, newPlugin(p, filepath.Join(binDir, p.Name)))
	}
	return out, nil
}

// check refuses what could not work, before any image is pulled.
func check(p *kubeletv1.CredentialProvider, binDir string) error {
	switch {
	case p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ \t\n"):
		return errors.New("name: give that of a program in imageCredentialProviderBinDir")
	case len(p.MatchImages) == 0:
		return errors.New("matchImages: give at least one")
	case p.DefaultCacheDuration == nil || p.DefaultCacheDuration.Duration < 0:
		return errors.New("defaultCacheDuration: give 0s or more")
	case p.APIVersion != pluginVersion:
		return fmt.Errorf("apiVersion %q: only %s is known", p.APIVersion, pluginVersion)
	case p.TokenAttributes != nil:
		return errors.New("tokenAttributes: plugins are not given tokens of service accounts yet")
	}
	for _, m := range p.MatchImages {
		host, _, _ := strings.Cut(m, "/")
		if _, err := filepath.Match(host, ""); err != nil || host == "" || strings.Contains(m, "://") {
			return fmt.Errorf("matchImages %q: give a host, with globs in its parts, and perhaps a port and a path", m)
		}
	}
	for _, e := range p.Env {
		if e.Name == "" || strings.Contains(e.Name, "=") {
			return fmt.Errorf("env %q: no name of a variable", e.Name)
		}
	}
	info, err := os.Stat(filepath.Join(binDir, p.Name))
	if err == nil && (info.IsDir() || info.Mode()&0o111 == 0) {
		err = fmt.Errorf("%s is no program", filepath.Join(binDir, p.Name))
	}
	return err
}

// Limits of a plugin's run.
const (
	pluginTime = time.Minute // as upstream
	maxAnswer  = 1 << 20     // bytes
	maxError   = 4 << 10
)
