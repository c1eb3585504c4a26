"""Kafka's wire protocol: conversion between bytes and messages. No module here uses a socket, an
event loop, a clock or a log."""
