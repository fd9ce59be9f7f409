import { mount } from 'svelte';
import App from './App.svelte';
import { theme } from './theme';

theme();
mount(App, { target: document.getElementById('app') as HTMLElement });
