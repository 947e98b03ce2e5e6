package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/device/dra"
	"github.com/shoal-project/shoal/agent/device/plugin"
	"github.com/shoal-project/shoal/agent/gatewayfeed"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/agent/volume"
)

// makeDirs makes the directories that others than the agent see. The modes are
// the kubelet's. RunDir is for root, but the root of a user namespace goes
// through it to its container.
func makeDirs(cfg *config.Config) error {
	dirs := map[string]fs.FileMode{
		cfg.RootDir:                                    0o750,
		filepath.Join(cfg.RootDir, "pods"):             0o750,
		filepath.Join(cfg.RootDir, "plugins_registry"): 0o750,
		filepath.Join(cfg.RootDir, "plugins"):          0o750,
		cfg.PodLogsDir:                                 0o755,
		cfg.RunDir:                                     0o711,
	}
	if d := cfg.ContainerLogsDir; d != "" && d != "-" {
		dirs[d] = 0o755
	}
	for d, mode := range dirs {
		if err := os.MkdirAll(d, mode); err != nil {
			return err
		}
	}
	// Agents of before left it open.
	return os.Chmod(filepath.Join(cfg.RootDir, "pods"), 0o750)
}

// store keeps values over restarts.
type store[T any] interface {
	Get(key string) (*T, error)
	All() (map[string]*T, error)
	Put(key string, v *T) error
	Delete(key string) error
	Close()
}

// stores are all that the node keeps.
type stores struct {
	seal    *checkpoint.Keys // of everything in them
	pods    store[podrecord.Pod]
	volumes store[volume.Volume]
	nodes   store[corev1.Node]
	images  store[podrecord.Image]
	claims  store[dra.Claim]
	// devices are those of device plugins that pods have, resources what has plugins;
	// nil on a hollow node.
	devices   *checkpoint.Store[plugin.Pod]
	resources *checkpoint.Store[plugin.Known]
	// gateways are what the gateway proxy does, with certificates' keys; nil on a hollow node.
	gateways *checkpoint.Store[gatewayfeed.Config]
	objects  source.Saved
	tokens   volume.Saved
}

// spareKey is where the key of records is found until the machine ends, if its file is lost.
func spareKey(cfg *config.Config) string { return filepath.Join(cfg.RunDir, "checkpoint.key") }

func openStores(cfg *config.Config, log *slog.Logger) (s stores, err error) {
	keys, chosen, err := checkpoint.FindKeys(cfg.CheckpointKey(), spareKey(cfg))
	if err != nil {
		return s, err
	}
	log.Info("records of pods are sealed", "key", chosen.Key, "because", chosen.Why)
	s.seal = keys
	if s.pods, err = openStore[podrecord.Pod](cfg, "pods", keys, log); err != nil {
		return s, err
	}
	if s.volumes, err = openStore[volume.Volume](cfg, "volumes", keys, log); err != nil {
		return s, err
	}
	if s.nodes, err = openStore[corev1.Node](cfg, "node", keys, log); err != nil {
		return s, err
	}
	if s.images, err = openStore[podrecord.Image](cfg, "images", keys, log); err != nil {
		return s, err
	}
	if s.claims, err = openStore[dra.Claim](cfg, "claims", keys, log); err != nil {
		return s, err
	}
	if s.devices, err = openStore[plugin.Pod](cfg, "devices", keys, log); err != nil {
		return s, err
	}
	if s.resources, err = openStore[plugin.Known](cfg, "resources", keys, log); err != nil {
		return s, err
	}
	if s.gateways, err = openStore[gatewayfeed.Config](cfg, "gateways", keys, log); err != nil {
		return s, err
	}
	objects, err := openStore[source.SavedObject](cfg, "objects", keys, log)
	if err != nil {
		return s, err
	}
	tokens, err := openStore[volume.PodTokens](cfg, "tokens", keys, log)
	if err != nil {
		return s, err
	}
	s.objects, s.tokens = objects, tokens
	if cfg.KeepSecrets() {
		return s, nil
	}
	log.Info("Secrets and tokens are not kept: pods that need them do not start without a coordinator",
		"because", "checkpointSecrets is false")
	s.objects, s.tokens = source.WithoutSecrets{Saved: objects}, volume.InMemory{}
	return s, errors.Join(objects.Clear(source.IsSecret), tokens.Clear(func(string) bool { return true }))
}

func openStore[T any](cfg *config.Config, name string, keys *checkpoint.Keys,
	log *slog.Logger) (*checkpoint.Store[T], error) {
	return checkpoint.Open[T](filepath.Join(cfg.CheckpointDir(), name), keys, log)
}

func (s stores) close() {
	s.pods.Close()
	s.volumes.Close()
	s.nodes.Close()
	s.images.Close()
	s.claims.Close()
	s.devices.Close()
	s.resources.Close()
	s.gateways.Close()
}
