// Package config is the agent's configuration: the shape of agent.yaml, its
// defaults, what is checked before the agent starts, and the lock of the data
// directory. Field names are those of the kubelet (KubeletConfiguration
// kubelet.config.k8s.io/v1beta1) wherever the meaning is the same.
package config
