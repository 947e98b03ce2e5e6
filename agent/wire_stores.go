package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	authv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/node"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/agent/volume"
)

func (a *agent) buildDirs(context.Context) error {
	// The modes are the kubelet's. RunDir is for root, but the root of a user
	// namespace goes through it to its container.
	dirs := map[string]fs.FileMode{
		a.cfg.RootDir:                                    0o750,
		filepath.Join(a.cfg.RootDir, "pods"):             0o750,
		filepath.Join(a.cfg.RootDir, "plugins_registry"): 0o750,
		filepath.Join(a.cfg.RootDir, "plugins"):          0o750,
		a.cfg.PodLogsDir:                                 0o755,
		a.cfg.RunDir:                                     0o711,
	}
	if d := a.cfg.ContainerLogsDir; d != "" && d != "-" {
		dirs[d] = 0o755
	}
	for d, mode := range dirs {
		if err := os.MkdirAll(d, mode); err != nil {
			return err
		}
	}
	// Agents of before left it open.
	if err := os.Chmod(filepath.Join(a.cfg.RootDir, "pods"), 0o750); err != nil {
		return err
	}
	a.measure = a.pressure
	var err error
	a.facts, err = node.Look(a.cfg.RootDir, a.cfg.NodeIP)
	return err
}

func (a *agent) buildStores(context.Context) error {
	keys, chosen, err := checkpoint.FindKeys(a.cfg.CheckpointKey())
	if err != nil {
		return err
	}
	a.log.Info("records of pods are sealed", "key", chosen.Key, "because", chosen.Why)
	a.seal = keys
	dir := a.cfg.CheckpointDir()
	if a.records, err = checkpoint.Open[podrecord.Pod](filepath.Join(dir, "pods"), keys, a.log); err != nil {
		return err
	}
	if a.nodes, err = checkpoint.Open[v1.Node](filepath.Join(dir, "node"), keys, a.log); err != nil {
		return err
	}
	if a.pulled, err = checkpoint.Open[podrecord.Image](filepath.Join(dir, "images"), keys, a.log); err != nil {
		return err
	}
	objects, err := checkpoint.Open[source.SavedObject](filepath.Join(dir, "objects"), keys, a.log)
	if err != nil {
		return err
	}
	tokens, err := checkpoint.Open[volume.PodTokens](filepath.Join(dir, "tokens"), keys, a.log)
	if err != nil {
		return err
	}
	if a.cfg.KeepSecrets() {
		a.keep(objects, tokens)
		return nil
	}
	a.log.Info("Secrets and tokens are not kept: pods that need them do not start without a coordinator", "because", "checkpointSecrets is false")
	if err := errors.Join(objects.Clear(source.IsSecret), tokens.Clear(func(string) bool { return true })); err != nil {
		return err
	}
	a.keep(source.WithoutSecrets{Saved: objects}, volume.InMemory{})
	return nil
}

// keep makes what holds objects and tokens of pods.
func (a *agent) keep(objects source.Saved, tokens volume.Saved) {
	a.objects = &source.Objects{Saved: objects, Log: a.log}
	a.tokens = &volume.TokenCache{Saved: tokens, Request: a.requestToken}
}

func (a *agent) requestToken(ctx context.Context, namespace, account string, r *authv1.TokenRequest) (*authv1.TokenRequest, error) {
	if a.client == nil {
		return nil, errors.New("no API server is configured")
	}
	return a.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, r, metav1.CreateOptions{})
}

func (a *agent) buildClient(ctx context.Context) error {
	if a.cfg.Kubeconfig == "" {
		a.events = &recorder{}
		return nil
	}
	rc, err := clientcmd.BuildConfigFromFlags("", a.cfg.Kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", a.cfg.Kubeconfig, err)
	}
	rc.ContentType = "application/vnd.kubernetes.protobuf"
	rc.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	rc.UserAgent = "kubelet/" + node.Version + " shoal-agent"
	rc.QPS = -1 // the API server's flow control decides
	if a.adjust != nil {
		a.adjust(rc)
	}
	a.tellRefusals(rc)
	a.rest = rc
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", a.cfg.Kubeconfig, err)
	}
	a.client, a.objects.Client = client, client
	a.events = newRecorder(ctx, client, a.cfg.NodeName)
	return nil
}
