// Package podspec holds what every kind with a pod template shares: defaulting,
// validation and small facts (quality of service class, container visiting) of
// pod specs, in the words and numbers of API v1.36.
package podspec
